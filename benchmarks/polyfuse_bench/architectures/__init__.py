"""Whole architectures against the truth: small random models of four libraries, forward and backward.

| module | holds |
| :-- | :-- |
| `catalogue`, `built` | the list of architectures and its order; what building one gives |
| `libraries` | importing the libraries where they are installed |
| `of_transformers`, `shrink`, `inputs`, `exceptions` | small configurations and inputs: rules, exceptions |
| `of_timm`, `of_torchvision`, `of_diffusers` | the other libraries |
| `measure`, `outcome`, `reports` | the truth, the runs, the rule, and what was compiled |
| `worker`, `campaign`, `command` | child processes, the campaign, the command line |
"""
