#include "src/base/output.h"
#include "src/cli/tool.h"

int main(int argc, char** argv) {
  verbena::prepare_standard_descriptors();
  return verbena::cli::run_tool(argc, argv);
}
