// {fmt} inside libverbena.so: what fmt::format() of all its files calls, compiled from the headers.
#include <fmt/format.h>

#include <string>

namespace verbena::soft {

// Its address makes the compiler emit it.
[[gnu::used]] static std::string (*const keep_vformat)(fmt::string_view,
                                                       fmt::format_args) = fmt::vformat;

}  // namespace verbena::soft
