"""Dense models in plain torch.

Exports contain copies of these files, so they import only torch and each other.
"""
