"""oneDNN's linear layers and convolutions with what follows them, as choices beside what torch calls.

torch multiplies matrices of f32 with another library, and adds activations and residuals in passes of their
own. Its operators `mkldnn::_linear_pointwise` and `mkldnn::_convolution_pointwise` do both at once. Weights
are laid out for them at each call, for they may change in between; `packed_weights` has the same with weights
that are laid out once, where freezing allows it.

`choices` lists what is offered, `library` says whether and in which types the library serves, and
`preferences` what is known without timing. `linear` and `convolution` say of a call whether the library can
do it and how it is called, `following` what it does in the same go, and `layouts` how tensors lie in memory.
"""
