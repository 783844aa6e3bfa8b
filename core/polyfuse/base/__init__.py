"""Ground floor: errors, settings, logging, digests, files and text. Imports nothing of Polyfuse, and no
torch.
"""
