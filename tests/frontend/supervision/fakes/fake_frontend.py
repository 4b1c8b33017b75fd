from fake_child import main

main("frontend")
