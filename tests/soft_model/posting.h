// Posting the requests of a plan, by ibv_post_send() or ibv_wr_start(), and receives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/soft_model/objects.h"
#include "tests/soft_model/plan.h"
#include "tests/soft_model/world.h"

namespace verbena::soft_model {

// Marks the identifiers of receives, and those of a shared queue, which are slots.
inline constexpr uint64_t kReceiveId = 1ull << 63;
inline constexpr uint64_t kSharedId = 1ull << 62;

// How many of `count` requests, which have the identifiers from `id` on, the queue pair takes.
size_t post_requests(const Life& life, Objects& objects, const Notices& notices, uint32_t end,
                     const Request* requests, size_t count, uint64_t id);
// What ibv_post_recv(), or ibv_post_srq_recv() where `end` is kNobody, returns.
int post_receive(Objects& objects, uint32_t end, const Receive& receive, uint64_t id);
// Shuts the window of a queue pair; binds it to the target. False where there is no room.
bool post_invalidate(Objects& objects, uint32_t end, uint64_t id);
bool post_bind(const Life& life, Objects& objects, uint32_t end, uint64_t id);

}  // namespace verbena::soft_model
