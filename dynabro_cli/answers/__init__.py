"""Answers of stored runs: statistics, figures, reports, exports, and the paper's bounds."""
