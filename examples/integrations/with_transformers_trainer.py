"""transformers' Trainer: the model is compiled before the trainer sees it."""

import tempfile

import torch
import transformers

config = transformers.BertConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
)
model = transformers.BertForSequenceClassification(config)
model.compile(backend="polyfuse")

tokens = torch.randint(0, 64, (32, 12))
data = [{"input_ids": row, "labels": row[0] % 2} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder,
        max_steps=4,
        per_device_train_batch_size=8,
        logging_steps=1,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert len(losses) == 4 and all(torch.isfinite(torch.tensor(loss)) for loss in losses)
