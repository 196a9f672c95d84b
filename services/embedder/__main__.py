from services.embedder.app import main

main()
