"""Every table and figure of the concrete autoencoder paper: ``python -m paper table1``.

A client of fewer like any other: it imports public names only.
"""
