"""Read stored runs: statistics, figures, reports, exports, and the bounds of the paper."""
