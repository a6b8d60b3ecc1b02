// Slurm's way to write many host names as one: "node[03-05,7],login1".
#pragma once

#include <string>
#include <string_view>

namespace verbena::job {

// The first name of the list ("node03"); empty if there is none, or it is not written that way.
std::string first_slurm_node(std::string_view list);

}  // namespace verbena::job
