"""What rides in an unedited job: found through `PYTHONPATH` (`site/sitecustomize.py`), installed when the job imports
torch.
"""
