"""The vocabulary of the generated world: genres with their styles, moods, and the parts of invented names."""

# Order matters: genres that stand close to each other share listeners (the list is read as a ring).
GENRES: dict[str, tuple[str, ...]] = {
    "rock": ("garage rock", "psychedelic rock", "post-rock", "shoegaze", "stoner rock", "classic rock"),
    "punk": ("post-punk", "pop punk", "hardcore", "riot grrrl", "ska punk", "emo"),
    "metal": ("doom metal", "black metal", "thrash", "progressive metal", "folk metal", "sludge"),
    "blues": ("delta blues", "electric blues", "blues rock", "slide guitar", "soul blues", "harmonica"),
    "country": ("alt-country", "bluegrass", "honky tonk", "outlaw country", "western swing", "steel guitar"),
    "folk": ("indie folk", "freak folk", "sea shanty", "singer-songwriter", "celtic", "fingerpicking"),
    "indie": ("dream pop", "jangle pop", "lo-fi", "bedroom pop", "chamber pop", "slowcore"),
    "pop": ("synthpop", "power pop", "electropop", "piano pop", "disco pop", "teen pop"),
    "k-pop": ("girl group", "boy group", "korean ballad", "k-indie", "city pop", "bubblegum"),
    "r&b": ("neo soul", "slow jam", "alternative r&b", "new jack swing", "quiet storm", "vocal harmony"),
    "soul": ("northern soul", "deep soul", "gospel", "philly soul", "doo-wop", "blue-eyed soul"),
    "funk": ("p-funk", "afrobeat", "disco", "go-go", "jazz funk", "brass band"),
    "hip-hop": ("boom bap", "trap", "conscious rap", "jazz rap", "grime", "turntablism"),
    "reggae": ("dub", "roots reggae", "dancehall", "rocksteady", "lovers rock", "ska"),
    "latin": ("salsa", "bossa nova", "cumbia", "reggaeton", "tango", "bolero"),
    "house": ("deep house", "acid house", "french house", "progressive house", "uk garage", "afro house"),
    "techno": ("minimal techno", "dub techno", "detroit techno", "hard techno", "electro", "industrial"),
    "electronic": ("idm", "downtempo", "drum and bass", "synthwave", "trip hop", "glitch"),
    "ambient": ("drone", "field recordings", "space music", "new age", "dark ambient", "modular synth"),
    "classical": ("baroque", "minimalism", "string quartet", "solo piano", "choral", "romantic era"),
    "jazz": ("bebop", "cool jazz", "free jazz", "vocal jazz", "fusion", "gypsy jazz"),
}

MOODS = (
    "melancholy", "upbeat", "dreamy", "dark", "warm", "angry", "romantic", "hypnotic", "playful", "epic",
    "late night", "summer", "road trip", "rainy day", "party", "focus", "workout", "sleep", "sunday morning",
    "heartbreak", "instrumental", "female vocals", "male vocals", "acoustic", "live band",
)  # fmt: skip

FIRST_NAMES = (
    "Ada", "Amara", "Anouk", "Bela", "Bruno", "Calla", "Cato", "Cleo", "Dalia", "Dario", "Edda", "Eliot", "Esme",
    "Fenna", "Finn", "Freya", "Gus", "Hana", "Hugo", "Ida", "Ines", "Iris", "Ivo", "Jonah", "Juno", "Kaito",
    "Kofi", "Lena", "Leo", "Lila", "Lupe", "Maeve", "Marek", "Mina", "Nadia", "Nico", "Noor", "Odile", "Omar",
    "Opal", "Oscar", "Petra", "Quinn", "Rafa", "Remy", "Rosa", "Ruben", "Saga", "Selma", "Silas", "Simone",
    "Soren", "Tariq", "Thea", "Tilda", "Tomas", "Uma", "Vera", "Viggo", "Wanda", "Wren", "Yara", "Yusuf", "Zadie",
    "Zora",
)  # fmt: skip

LAST_NAMES = (
    "Abara", "Adler", "Almeida", "Ashdown", "Bellweather", "Birk", "Blackwood", "Brandt", "Calloway", "Castellan",
    "Cole", "Corvin", "Dahl", "Delacroix", "Devereux", "Duarte", "Eklund", "Fairchild", "Falk", "Ferreira",
    "Fontaine", "Galloway", "Greaves", "Haddad", "Hale", "Halloran", "Hart", "Holm", "Ibarra", "Jansen", "Kade",
    "Keita", "Kestrel", "Kim", "Lark", "Lindqvist", "Locke", "Lovell", "Marchetti", "Mbeki", "Mercer", "Moreau",
    "Nakano", "Navarro", "Nilsen", "Oakley", "Okoro", "Osei", "Pell", "Quill", "Ravel-Stone", "Reyes", "Rook",
    "Sable", "Sato", "Sinclair", "Solano", "Sparrow", "Strand", "Tanaka", "Thorne", "Vance", "Vasquez", "Vega",
    "Voss", "Weiss", "Wilder", "Winters", "Yamada", "Zeller",
)  # fmt: skip

ADJECTIVES = (
    "Velvet", "Silent", "Golden", "Hollow", "Electric", "Paper", "Crimson", "Distant", "Broken", "Midnight",
    "Northern", "Silver", "Burning", "Gentle", "Wild", "Frozen", "Lonesome", "Neon", "Painted", "Quiet", "Rusty",
    "Sacred", "Second", "Secret", "Slow", "Southern", "Strange", "Sunken", "Tender", "Tidal", "Violet",
    "Wandering", "Wooden", "Faded", "Floating", "Glass", "Hidden", "Honest", "Inner", "Last", "Little", "Lucky",
    "Magnetic", "Modern", "Nameless", "Open", "Pale", "Patient", "Scarlet", "Sleepless", "Stolen", "Thirsty",
    "Upper", "Weightless", "Winter", "Borrowed",
)  # fmt: skip

NOUNS = (
    "Harbour", "Lantern", "Fox", "River", "Engine", "Garden", "Mirror", "Satellite", "Orchard", "Shadow", "Tiger",
    "Window", "Wolf", "Island", "Machine", "Meadow", "Compass", "Crown", "Station", "Ghost", "Horizon", "Kingdom",
    "Ladder", "Lighthouse", "Magpie", "Mountain", "Ocean", "Parade", "Pilot", "Planet", "Pocket", "Prairie",
    "Radio", "Raven", "Saint", "Season", "Signal", "Sister", "Sparrow", "Spiral", "Stranger", "Swan", "Temple",
    "Thunder", "Tower", "Valley", "Village", "Voyage", "Whale", "Willow", "Arrow", "Balcony", "Bell", "Bridge",
    "Candle", "Canyon", "Carousel", "Cathedral", "Comet", "Diamond", "Echo", "Ember", "Feather", "Field", "Flame",
    "Forest", "Hotel", "Moon",
)  # fmt: skip

PLACES = (
    "Lisbon", "Oslo", "Havana", "Kyoto", "Memphis", "Nairobi", "Marseille", "Montreal", "Valencia", "Bergen",
    "Osaka", "Bristol", "Dakar", "Tallinn", "Busan", "Trieste", "Cork", "Salvador", "Antwerp", "Reno", "Tbilisi",
    "Leeds",
)  # fmt: skip

VERBS = (
    "Follow", "Forget", "Carry", "Leave", "Remember", "Break", "Hold", "Find", "Wake", "Cross", "Paint", "Steal",
    "Trust", "Chase", "Burn", "Mend", "Count", "Call", "Keep", "Lose", "Borrow", "Name", "Watch", "Swallow",
)  # fmt: skip

TIMES = (
    "Morning", "Midnight", "Tomorrow", "Sunday", "Yesterday", "September", "Summer", "Winter", "Dawn", "Noon",
    "Monday", "April", "Tonight", "Autumn", "Evening", "Forever",
)  # fmt: skip
