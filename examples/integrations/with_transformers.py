"""transformers: a decoder generates tokens, its forward compiled."""

import torch
import transformers

config = transformers.LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)
model = transformers.LlamaForCausalLM(config).eval()
prompt = torch.arange(8)[None]
wanted = model.generate(prompt, max_new_tokens=8, do_sample=False)

model.forward = torch.compile(model.forward, backend="polyfuse", dynamic=True)
found = model.generate(prompt, max_new_tokens=8, do_sample=False)
assert torch.equal(found, wanted)
