// A program with the note that Go's linker writes.
#include "tests/support/go_memory_checks.h"

__asm__(
    ".pushsection .note.go.buildid, \"a\", %note\n"
    ".balign 4\n"
    ".long 4, 8, 4\n"
    ".asciz \"Go\\0\"\n"
    ".asciz \"a build\"\n"
    ".popsection\n");

int main(int count, char** arguments) { return verbena::test::check_go_memory(count, arguments); }
