// The end of the program: what it has left behind, and its exit code.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <utility>

#include "src/device/soft/check/check_records.h"

namespace verbena::soft::check {
namespace {

const char* remedy_of(Type type) {
  switch (type) {
    case Type::kContext:
      return "ibv_close_device() before the program ends";
    case Type::kDomain:
      return "ibv_dealloc_pd() before the program ends";
    case Type::kRegion:
      return "ibv_dereg_mr() before the program ends";
    default:
      return "destroy it before the program ends";
  }
}

void report_leaks(State& all) {
  struct Left {
    size_t count = 0;
    const void* first = nullptr;
  };
  std::map<std::pair<Type, const void*>, Left> left;
  {
    const StateLock guard(all);
    take_releases(all);
    for (const auto& [self, object] : all.objects) {
      const bool librarys_own = object.of_connection_manager &&
                                (object.type == Type::kContext || object.type == Type::kDomain);
      if (object.process != this_process() || librarys_own) continue;
      Left& found = left[{object.type, object.place}];
      if (found.count++ == 0) found.first = self;
    }
  }
  for (const auto& [made, found] : left) {
    all.report({.kind = CheckKind::kLeak,
                .place = made.second,
                .what = fmt::format("{} {}{} left at the end of the program", found.count,
                                    type_name(made.first), found.count > 1 ? "s" : ""),
                .object = fmt::format("{} {}, made here", type_name(made.first), found.first),
                .hardware = "the kernel takes it back; in a program that goes on it is lost, with "
                            "the memory that it pins",
                .remedy = remedy_of(made.first)});
  }
}

void finish(int status) {
  State& all = *state();
  // A program that fails often leaves all as it is.
  if (status == 0) report_leaks(all);
  all.reports.finish();
  if (status != 0 || all.reports.count() == 0 || all.reports.options().exit_code == 0) return;
  // The C library goes on with what is left of the end, with this code. It flushes as after any
  // program, and does not wait for a stream that another thread sits in, as in fgets().
  std::exit(all.reports.options().exit_code);
}

// Both come to each program that ends by exit(). Where this library is loaded before the program
// starts, the first one comes after all destructors of the program and of its libraries; where it
// is loaded later, the second one does. Who comes last does the work.
std::atomic<bool> first_was_here{false};
std::atomic<int> exit_status{-1};

void at_exit(int status, void*) {
  if (first_was_here.exchange(true)) return finish(status);
  exit_status.store(status);
}

__attribute__((destructor)) void at_unload() {
  if (state() == nullptr) return;
  if (first_was_here.exchange(true) && exit_status.load() >= 0) finish(exit_status.load());
}

}  // namespace

void watch_exit() { on_exit(at_exit, nullptr); }

}  // namespace verbena::soft::check
