"""The words of the toy language pair, English and German, and how German inflects.

Tables, the most frequent word of a group first: the grammar draws from them with Zipf weights. Words were
chosen so that English decides German: no noun is spelt alike in singular and plural, no form is both noun and
verb, a verb has one valency. Some English words have two German ones, chosen by a word that may stand far
away, as in real German: a person `isst`, an animal `frisst`; a person `rennt`, a machine `läuft`. German is
regular where real German is not: `von` and the dative for the genitive, no contractions (`in dem`), no weak
nouns."""

from functools import partial

from headgates.data.toy.entries import Adjective, Adverb, Determiner, Noun, Preposition, Verb, read_entries

read_nouns, read_adjectives, read_adverbs = (
    partial(read_entries, Noun),
    partial(read_entries, Adjective),
    partial(read_entries, Adverb),
)
read_prepositions, read_determiners = partial(read_entries, Preposition), partial(read_entries, Determiner)

NOUNS = {  # English, gender, German, and the preposition of place unless it is `in`
    "person": read_nouns("""
        man men / m / Mann Männer
        woman women / f / Frau Frauen
        child children / n / Kind Kinder
        teacher teachers / m / Lehrer Lehrer
        friend friends / m / Freund Freunde
        mother mothers / f / Mutter Mütter
        girl girls / n / Mädchen Mädchen
        doctor doctors / m / Arzt Ärzte
        sister sisters / f / Schwester Schwestern
        king kings / m / König Könige
        aunt aunts / f / Tante Tanten"""),
    "animal": read_nouns("""
        dog dogs / m / Hund Hunde
        cat cats / f / Katze Katzen
        horse horses / n / Pferd Pferde
        bird birds / m / Vogel Vögel
        cow cows / f / Kuh Kühe
        mouse mice / f / Maus Mäuse
        pig pigs / n / Schwein Schweine"""),
    "thing": read_nouns("""
        table tables / m / Tisch Tische
        picture pictures / n / Bild Bilder
        lamp lamps / f / Lampe Lampen
        chair chairs / m / Stuhl Stühle
        knife knives / n / Messer Messer
        coat coats / m / Mantel Mäntel"""),
    "closable": read_nouns("""
        door doors / f / Tür Türen
        window windows / n / Fenster Fenster
        box boxes / m / Kasten Kästen
        bottle bottles / f / Flasche Flaschen"""),
    "text": read_nouns("""
        book books / n / Buch Bücher
        letter letters / m / Brief Briefe
        story stories / f / Geschichte Geschichten
        song songs / n / Lied Lieder"""),
    "machine": read_nouns("""
        car cars / n / Auto Autos
        clock clocks / f / Uhr Uhren
        engine engines / m / Motor Motoren
        radio radios / n / Radio Radios"""),
    "place": read_nouns("""
        house houses / n / Haus Häuser
        garden gardens / m / Garten Gärten
        city cities / f / Stadt Städte
        street streets / f / Straße Straßen / auf
        village villages / n / Dorf Dörfer
        river rivers / m / Fluss Flüsse / an
        forest forests / m / Wald Wälder
        school schools / f / Schule Schulen
        market markets / m / Markt Märkte / auf
        bridge bridges / f / Brücke Brücken / auf"""),
    "food": read_nouns("""
        apple apples / m / Apfel Äpfel
        soup soups / f / Suppe Suppen
        egg eggs / n / Ei Eier
        cake cakes / m / Kuchen Kuchen"""),
    "idea": read_nouns("""
        question questions / f / Frage Fragen
        problem problems / n / Problem Probleme
        lesson lessons / f / Stunde Stunden"""),
}
# persons without a determiner; pronouns, subjects only, are singular or plural by the number of their forms
NAMES = read_nouns("""
    Anna / f / Anna
    Peter / m / Peter
    Maria / f / Maria
    Paul / m / Paul""")
PRONOUNS = read_nouns("""
    he / m / er
    she / f / sie
    they they / f / sie sie""")

COPULA = Verb("copula", "are is", "any idea", "", "ist sind")
_VERBS = {
    "intransitive": """
        sleep sleeps / animate / - / schläft schlafen
        run runs / person machine animal / - / rennt rennen / subject machine: läuft laufen
        go goes / person machine animal / - / geht gehen / subject machine: fährt fahren / motion
        stop stops / person machine / - / auf|hört hören / subject machine: an|hält halten
        work works / person machine / - / arbeitet arbeiten / subject machine: funktioniert funktionieren
        arrive arrives / animate machine / - / an|kommt kommen
        fall falls / animate thing closable / - / hin|fällt fallen / subject thing closable: um|fällt fallen
        laugh laughs / person / - / lacht lachen
        return returns / animate / - / zurück|kommt kommen
        wait waits / animate / - / wartet warten
        jump jumps / animate / - / springt springen / motion
        sing sings / animate / - / singt singen
        climb climbs / animate / - / klettert klettern / motion""",
    "transitive": """
        see sees / animate / any / sieht sehen
        call calls / person / animate / an|ruft rufen / object animal: ruft rufen
        know knows / person / animate text place / kennt kennen
        open opens / person / closable text / auf|macht machen / object text: öffnet öffnen
        eat eats / animate / food / isst essen / subject animal: frisst fressen
        like likes / animate / any / mag mögen
        clean cleans / person / place thing closable machine / putzt putzen / object place: auf|räumt räumen
        help helps / animate / animate / hilft helfen / dat
        start starts / person / machine text idea / an|fängt fangen / object machine: ein|schaltet schalten
       leave leaves / animate / place thing text / verlässt verlassen / object thing text: zurück|lässt lassen
        find finds / animate / animal thing closable text machine food / findet finden
        follow follows / animate / animate machine / folgt folgen / dat
        buy buys / person / animal thing closable text machine food / kauft kaufen
        hear hears / animate / animate machine / hört hören
        read reads / person / text / liest lesen
        visit visits / person / person place / besucht besuchen
        invite invites / person / person / ein|lädt laden
        close closes / person / closable text / zu|macht machen
        thank thanks / person / person / dankt danken / dat
        understand understands / person / idea text person / versteht verstehen
        carry carries / person / thing closable text food animal / trägt tragen
        wake wakes / animate / animate / auf|weckt wecken
        repair repairs / person / machine closable thing / repariert reparieren""",
    "ditransitive": """
        give gives / person / thing closable text food animal / gibt geben
        show shows / person / thing text machine place animal / zeigt zeigen
        bring brings / person / thing closable text food / mit|bringt bringen
        send sends / person / thing text closable / schickt schicken""",
    "clause": """
        say says / person / that / sagt sagen
        know knows / person / that whether / weiß wissen
        think thinks / person / that / denkt denken
        ask asks / person / whether / fragt fragen
        hope hopes / person / that / hofft hoffen""",
}
VERBS = {frame: read_entries(partial(Verb, frame), rows) for frame, rows in _VERBS.items()}
MODALS = (
    ("will", ("wird", "werden")),
    ("can", ("kann", "können")),
    ("must", ("muss", "müssen")),
    ("should", ("soll", "sollen")),
)

ADJECTIVES = read_adjectives("""
    old / any / alt
    small / any / klein
    bright / person machine place thing / hell / person: klug
    big / any / groß
    sweet / animate food / süß / person animal: lieb
    good / any idea / gut
    hard / thing closable food idea text / hart / idea text: schwierig
    new / solid idea / neu
    strong / animate machine / stark / machine: kräftig
    short / person text idea thing / kurz / person: winzig
    young / animate / jung
    beautiful / any / schön
    red / solid / rot
    hungry / animate / hungrig
    fresh / food / frisch
    black / animal thing closable machine / schwarz
    cold / food place closable / kalt
    happy / animate / froh
    heavy / thing closable machine animal text / schwer
    poor / animate / arm
    strange / any idea / seltsam
    green / thing closable machine place food / grün
    quiet / animate place machine / ruhig
    famous / person place text / berühmt
    cheap / thing closable text machine food / billig
    long / text idea place / lang
    broken / machine thing closable / kaputt
    wild / animal place / wild""")

BEFORE_VERB = read_adverbs("""
    often / oft
    always / immer
    never / nie / neg
    sometimes / manchmal
    also / auch
    still / noch
    rarely / selten""")
AFTER_VERB = read_adverbs("""
    slowly / langsam
    quickly / schnell
    quietly / leise
    carefully / vorsichtig
    gladly / gern""")
TIME = read_adverbs("""
    now / jetzt
    today / heute / npadvmod
    here / hier
    soon / bald
    later / später
    outside / draußen""")  # after the verb too, or fronted
DEGREES = read_adverbs("""
    very / sehr
    quite / ziemlich
    too / zu""")

PREPOSITIONS = read_prepositions("""
    in / in / two-way / place
    with / mit / dat / animate thing
    at / - / dat / place
    for / für / acc / animate
    on / auf / two-way / thing place
    behind / hinter / two-way / place person closable
    without / ohne / acc / person thing text
    after / nach / dat / idea food text
    under / unter / two-way / thing machine
    beside / neben / two-way / animate machine closable
    before / vor / dat / idea food text""")  # attached to verbs
DIRECTION_PREPOSITIONS = read_prepositions("""
    to / - / acc / place
    to / zu / dat / person
    in / in / two-way / place
    on / auf / two-way / thing place
    through / durch / acc / place
    behind / hinter / two-way / place person
    under / unter / two-way / thing machine
    around / um / acc / place""")  # attached to verbs of motion
OF_NOUN = read_prepositions("""
    of / von / dat / animate
    from / aus / dat / place""")  # attached to nouns

SINGULAR = read_determiners("""
    the / det / - / der / weak
    a / det / ein / ein / mixed
    this / det / dies / dies / weak
    my / poss / mein / ein / mixed
    every / det / jed / dies / weak
    no / det / kein / ein / mixed""")
PLURAL = read_determiners("""
    the / det / - / der / weak
    - / det / - / fixed / strong
    these / det / dies / dies / weak
    two / nummod / zwei / fixed / strong
    my / poss / mein / ein / mixed
    many / amod / viel / strong / strong
    all / det / all / dies / weak
    three / nummod / drei / fixed / strong""")

ADVERBIAL_MARKS = (
    ("because", "weil"), ("when", "wenn"), ("if", "falls"), ("while", "während"), ("although", "obwohl"),
    ("before", "bevor"), ("after", "nachdem"),
)  # fmt: skip
CONTENT_MARKS = {"that": "dass", "whether": "ob"}
COORDINATORS = (("and", "und"), ("but", "aber"))
