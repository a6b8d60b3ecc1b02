#include "src/job/slurm_nodes.h"

namespace verbena::job {

std::string first_slurm_node(std::string_view list) {
  std::string name;
  size_t at = 0;
  while (at < list.size() && list[at] != ',') {
    if (list[at] != '[') {
      name += list[at++];
      continue;
    }
    // The first number of the brackets, with its leading zeros: "[03-05,7]".
    const size_t end = list.find(']', at);
    if (end == std::string_view::npos) return {};
    const std::string_view numbers = list.substr(at + 1, end - at - 1);
    const std::string_view first = numbers.substr(0, numbers.find_first_of(",-"));
    if (first.empty()) return {};
    name += first;
    at = end + 1;
  }
  return name;
}

}  // namespace verbena::job
