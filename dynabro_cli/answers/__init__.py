"""What stored runs say: statistics, figures, reports, exports, and the paper's bounds."""
