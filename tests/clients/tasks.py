"""The prompts for the clients, in the wording that the scripted agent has rules for."""

EDIT = "Replace `alpha` with `beta` in notes.txt, then answer with the single word EDITED."
PARALLEL = (
    "In one single response make three shell tool calls in parallel, exactly these commands: "
    "`echo 1 > p1.txt` , `echo 2 > p2.txt` , `echo 3 > p3.txt`. Then answer with the single word DONE."
)
FOLLOW = "Run exactly this command: `cat p1.txt notes.txt > both.txt`. Then answer with the single word JOINED."
MUCH = "Run exactly this command: `seq 1 900`. Then answer with the single word MUCH."
ON = "Run exactly this command: `echo on > on.txt`. Then answer with the single word ON."
