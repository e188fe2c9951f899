"""Every table and figure of the concrete autoencoder paper: ``python -m paper table1``.

Two more experiments, ``ip-cae`` and ``diffusion``, follow other papers. The folder is a client of
fewer like any other: it imports public names only.
"""
