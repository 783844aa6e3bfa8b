"""Every private torch name the project uses, one small module an area.

| module | area |
|---|---|
| `version` | which torch this is, which are supported |
| `registry` | Dynamo's table of backends |
| `dynamo` | counters, tracing context, disabling |
| `aot` | AOTAutograd entry, partitioner, functionalisation metadata |
| `decomp` | torch's decomposition tables |
| `fake` | fake tensors and fake modes |
| `shapes` | symbolic shapes: expressions, hints, ranges, guards |
| `fx` | graph helpers that lean on private parts of `torch.fx` |
| `ops` | operator schemas: names, tags, aliasing, mutation |
| `bindings` | fast C functions used by generated code |
| `options` | options of torch's own compiler |

Nothing is imported here: the areas cost very different amounts of start-up time.
"""
