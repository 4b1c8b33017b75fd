from fake_child import main

main("spare")
