"""An index of large data sets, which makes opening them a second time quick."""
