"""What can be done to a model, as data: `depth.py`, `sparsity.py`, `recovery.py`.

`recipe.py` gathers them; import them from there.
"""
