"""Zeus (You, Chung, Chowdhury, NSDI'23): its figures and claims, from the traces of its artifact.

Run ``python -m papers.zeus --data DIR`` in the root folder of the project, or ``make reproduce``.
"""
