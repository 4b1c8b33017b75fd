"""Workers that compute nothing and give the right tokens: of rows that a simulation can check against them."""
