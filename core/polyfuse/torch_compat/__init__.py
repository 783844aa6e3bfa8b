"""Every private torch name the project uses, one small module an area.

| module or folder | area |
|---|---|
| `tracing` | Dynamo, AOTAutograd, decomposition tables, fake tensors, symbolic shapes, `torch.fx` |
| `captures` | what Dynamo made of frames, their guards, and inputs that share memory |
| `options` | options of torch's own compiler |
| `devices` | CUDA graphs, streams, memory pools, switches of libraries |
| `ops`, `custom_operators`, `dispatch`, `refusals` | operators: schemas, kernels, what eager mode refuses |
| `bindings`, `calls` | fast C functions, and the cheapest way to call an operator, for generated code |
| `autograd_functions`, `saved_tensors`, `training_calls` | calls of compiled graphs with gradients |
| `groups`, `simulated_group`, `symmetric` | groups of processes, simulated ones, memory that they share |
| `strides`, `swaps`, `user_kernels` | strides, `swap_tensors`, kernels of the model's author in Triton |

Nothing is imported here: the areas cost very different amounts of start-up time.
"""
