"""transformers' generate with a static cache: it compiles each step of decoding by itself."""

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

how = transformers.CompileConfig(backend="polyfuse", mode="default")
how._compile_all_devices = True  # on a CPU too, where transformers does not compile by itself
found = model.generate(
    prompt,
    max_new_tokens=8,
    do_sample=False,
    cache_implementation="static",
    compile_config=how,
)
assert torch.equal(found, wanted)
