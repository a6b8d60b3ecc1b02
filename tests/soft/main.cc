#include "tests/soft/process.h"

int main(int argc, char** argv) { return verbena::soft_test::run_main(argc, argv); }
