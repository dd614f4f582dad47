"""Surroundings of the process: cores, memory, devices, files of strangers, and settings from the
environment.
"""
