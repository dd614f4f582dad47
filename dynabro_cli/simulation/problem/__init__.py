"""Problems that a run solves: a network on images with the samples of each worker, or an
objective.
"""
