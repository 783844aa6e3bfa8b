"""The reference interpreter: what each operation of the representation means, in plain torch.

It decides what is right. Speed is nobody's concern here.
"""
