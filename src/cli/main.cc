#include "src/cli/tool.h"

int main(int argc, char** argv) { return verbena::cli::run_tool(argc, argv); }
