// Runs the parts of a piece of work, in tasks of oneTBB or, with one thread, in the caller.
#pragma once

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace verbena::join_app {

class Executor {
 public:
  // 0 threads: one for each CPU of the process, which is also the most.
  explicit Executor(uint32_t threads) {
    if (threads == 1) return;
    const auto most = static_cast<uint32_t>(tbb::info::default_concurrency());
    arena_ = std::make_unique<tbb::task_arena>(
        static_cast<int>(threads == 0 ? most : std::min(threads, most)));
  }

  uint32_t threads() const {
    return arena_ == nullptr ? 1 : static_cast<uint32_t>(arena_->max_concurrency());
  }
  // Which of threads() the caller is, in a body.
  uint32_t thread() const {
    return arena_ == nullptr ? 0
                             : static_cast<uint32_t>(tbb::this_task_arena::current_thread_index());
  }

  // Calls body(i) for 0 to count - 1, in any order. Bodies may call it themselves; until that
  // returns, their thread does nothing else than these inner parts, so what belongs to a thread is
  // not used by two bodies at once.
  template <typename Body>
  void for_each(uint64_t count, const Body& body) const {
    if (arena_ == nullptr) {
      for (uint64_t i = 0; i < count; ++i) body(i);
      return;
    }
    arena_->execute([&] {
      tbb::this_task_arena::isolate(
          [&] { tbb::parallel_for(uint64_t{0}, count, body, tbb::simple_partitioner()); });
    });
  }

 private:
  std::unique_ptr<tbb::task_arena> arena_;
};

}  // namespace verbena::join_app
