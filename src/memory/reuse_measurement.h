// What registering, copying and looking up cost here: the numbers behind reuse_thresholds.h.
#pragma once

#include "src/memory/buffer_use.h"
#include "src/memory/registration_cache.h"
#include "src/memory/reuse_thresholds.h"

namespace verbena {

// Measures with memory of its own, by now_ns(): in a simulation what the profile charges. Registers
// with `access` through the cache, as its users will, so that R has everything that a miss costs
// and V everything that a hit does; what it registered is forgotten again. `index` is what buffers
// will be found by. Takes some milliseconds; the median of several rounds counts.
//
// Copies are made within the cache, which is where a buffer that was just filled lies. Where
// memory is slower, a copy costs more, and sending in place pays sooner than this says.
Result<ReuseCostModel> measure_reuse_costs(RegistrationCache& cache, unsigned access,
                                           BufferUseIndex index = BufferUseIndex::kHash);

}  // namespace verbena
