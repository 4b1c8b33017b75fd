"""What no attacker gets: code run from data, a second way in, a service that crashes on input."""
