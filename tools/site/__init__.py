"""The documentation as a site: what it is made of (`sources`), and how it looks (`conf`)."""
