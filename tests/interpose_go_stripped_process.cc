// A program of Go that was linked with -buildid=: no note, but the sections of its file.
#include "tests/support/go_memory_checks.h"

__asm__(
    ".pushsection .gopclntab, \"a\"\n"
    ".long 0\n"
    ".popsection\n");

int main(int count, char** arguments) { return verbena::test::check_go_memory(count, arguments); }
