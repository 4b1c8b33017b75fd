"""What no attacker gets: code run from data, a second way in, a service that dies of what it is sent."""
