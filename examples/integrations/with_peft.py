"""peft: a training step of LoRA adapters on a compiled model."""

import torch
import transformers
from peft import LoraConfig, get_peft_model

config = transformers.LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)
model = get_peft_model(
    transformers.LlamaForCausalLM(config), LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
)
tokens = torch.randint(0, 128, (2, 16))
wanted = model(input_ids=tokens, labels=tokens).loss
compiled = torch.compile(model, backend="polyfuse")
loss = compiled(input_ids=tokens, labels=tokens).loss
torch.testing.assert_close(loss, wanted)
loss.backward()
assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
