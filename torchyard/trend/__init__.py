"""The numbers of a profile's runs over time: kept as lines on disk, compared with the last nights, plotted."""
