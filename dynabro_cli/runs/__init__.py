"""Runs are made here: processes that compute them, searches, and the database that keeps them."""
