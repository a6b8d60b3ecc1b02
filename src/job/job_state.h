// What a Job holds.
#pragma once

#include <optional>

#include "src/job/rendezvous.h"
#include "verbena/job.h"

namespace verbena {

struct Job::State {
  job::Seat seat;
  job::Mesh mesh;
  JobSecret secret;
};

}  // namespace verbena
