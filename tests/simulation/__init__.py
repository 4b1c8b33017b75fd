"""The real client session and the real engine under one virtual clock, and bugs planted to see that it finds them."""
