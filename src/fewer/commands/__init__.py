"""The commands of ``fewer``, one file each; what they share is in the files beside them.

Nothing heavy is imported before a command runs, so that ``fewer --help`` answers at once.
"""
