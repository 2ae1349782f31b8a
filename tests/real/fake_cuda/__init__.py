"""A CUDA machine without a GPU.

Everything of this project runs; only PyTorch's own CUDA is replaced. Each operation runs twice: under PyTorch's
``FakeTensorMode`` with ``device="cuda"``, whose rules refuse a tensor left on the CPU and say which shapes and
dtypes CUDA would give, and for real on the CPU, which gives the values that the host is told when it asks. Streams,
events, graphs and the host's waits are kept by ``order.py``.
"""
