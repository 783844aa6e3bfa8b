import torch


def f(x, y):
    return x * y - x


def g(x):
    return x.sum(-1)


options = {"backends": ["minimal", "cpp"]}
x, y = torch.randn(12), torch.randn(12)
for function, arguments in ((f, (x, y)), (g, (x,))):
    compiled = torch.compile(function, backend="polyfuse", options=options)
    torch.testing.assert_close(compiled(*arguments), function(*arguments))
