"""The paper, in plain PyTorch: no files, no processes, no kernels. `cell.py` reads like its section 3."""
